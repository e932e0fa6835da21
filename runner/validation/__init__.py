"""What measures how true verdicts are, on sets that the checks were not made from. Each module is a command."""
