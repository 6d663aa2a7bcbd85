"""The record of every run in MLflow. Only this package imports MLflow, and only inside functions."""
