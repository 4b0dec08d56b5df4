"""The handles that programs hold: broker, tube, session, group, outcome."""
