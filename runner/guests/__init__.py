"""Jobs in virtual time: each in a small kernel of its own (guest/), whose clock jumps when nobody has work."""
