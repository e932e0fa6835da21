package congestion

// cubicOf is CUBIC that stands for so many connections: a loss costs one of them its share, and all of them grow.
func cubicOf(clock Clock, flows int) *Cubic {
	c := NewCubic(clock)
	c.SetNumConnections(flows)
	return c
}
