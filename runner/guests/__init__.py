"""Jobs in virtual time: each in its own small kernel (guest/), whose clock jumps when no process has work."""
