"""The commands: what each takes, who may give it, and how it is carried out."""
