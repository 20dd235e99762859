"""Plan a deployment: is it legal, where is it placed, does it fit, did the server agree. Pure functions."""
