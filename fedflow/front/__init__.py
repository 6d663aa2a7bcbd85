"""The front door for notebooks and scripts: `run`, `Result`, `compare`, without params.yaml or servers."""
