"""Images: the base image, building images, pulling images, set-up of the host, `doctor`."""
