"""Real links: endpoints on other hosts, through their Docker Engines, over SSH."""
