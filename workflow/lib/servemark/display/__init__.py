"""What the terminal shows of a run: plain lines, or a live display at a terminal."""
