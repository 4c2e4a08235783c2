"""Tables: their rows, the printed figures beside them, and the forms they are shown in."""
