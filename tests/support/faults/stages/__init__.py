"""What becomes of the stages beside training when something goes wrong; run by a command."""
