"""The faults and bad inputs that the project is measured against, each as something that can be run."""
