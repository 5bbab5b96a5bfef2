"""Device profiles: what a machine can do, as measured figures with their source. Data, no measuring."""
