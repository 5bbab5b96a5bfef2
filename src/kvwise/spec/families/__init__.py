"""One reader for each kind of config.json: from its fields to a ModelSpec. The table of them is in hf_config.py.

A reader knows the field names and the class defaults of its families, and nothing else does.
"""
