package congestion

// cubicOf makes a CUBIC that emulates the given number of connections: a loss reduces the share of one of them, and all of them
// grow.
func cubicOf(clock Clock, flows int) *Cubic {
	c := NewCubic(clock)
	c.SetNumConnections(flows)
	return c
}
