"""What a platform runs on every job that ended: finds its files, analyses them inside bounds, and never fails the platform."""
