"""What a segment does for a model: training visits, averages of replicas, evaluations."""
