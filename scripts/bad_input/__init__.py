"""The cases of bad_inputs.py, by the part of the protocol that they abuse."""
