"""What stores and the layers above them need of the operating system: forks, and events that can be polled."""
