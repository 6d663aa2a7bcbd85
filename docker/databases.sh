#!/bin/sh
# PostgreSQL's image runs this once, in a new volume.
set -eu
for name in mlflow prefect; do
    createdb --username "$POSTGRES_USER" "$name"
done
