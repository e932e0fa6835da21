"""What measures how true verdicts, intervals and alarms are. Each module is a command."""
