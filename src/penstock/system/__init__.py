"""What stores and the layers above them need of the operating system: forks, wake-ups, mounts."""
