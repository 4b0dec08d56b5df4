"""Operations: what verbs are made of, written once for threads and for asyncio."""
