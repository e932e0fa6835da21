"""Images: the base image, building, pulling, set-up of the host, `doctor`."""
