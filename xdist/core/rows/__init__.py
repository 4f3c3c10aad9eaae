"""What is found out about the rows of a program before it is made."""
