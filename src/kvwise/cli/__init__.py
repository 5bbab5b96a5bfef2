"""The commands. Text for people goes to stderr, answers and JSON to stdout; nothing else writes to a terminal."""
