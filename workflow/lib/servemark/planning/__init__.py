"""Is a topology legal for a model, where does it go, does it fit, and did the server agree: pure functions."""
