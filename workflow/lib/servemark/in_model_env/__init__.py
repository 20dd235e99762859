"""Scripts for the model environment's interpreter. The library never imports them."""
