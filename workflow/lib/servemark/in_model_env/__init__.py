"""Scripts that the model environment's interpreter runs. Nothing here is imported by the library."""
