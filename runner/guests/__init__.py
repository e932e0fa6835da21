"""Jobs in virtual time: each job runs in its own small kernel (guest/), whose clock jumps when no process has work."""
