#!/bin/sh
# Write new passwords to docker/secrets/, which git ignores. Existing ones are kept.
set -eu
umask 077
cd "$(dirname "$0")"
mkdir -p secrets
for name in postgres prefect s3 mlflow; do
    [ -s "secrets/$name" ] || openssl rand -hex 24 > "secrets/$name"
done
cat > secrets/s3.json <<JSON
{"identities": [{"name": "fedflow", "actions": ["Admin"],
  "credentials": [{"accessKey": "fedflow", "secretKey": "$(cat secrets/s3)"}]}]}
JSON
cat > secrets/aws <<INI
[default]
aws_access_key_id = fedflow
aws_secret_access_key = $(cat secrets/s3)
INI
cat > secrets/mlflow.ini <<INI
[mlflow]
default_permission = READ
database_uri = postgresql+psycopg://fedflow:$(cat secrets/postgres)@postgres/mlflow
admin_username = fedflow
admin_password = $(cat secrets/mlflow)
INI
echo "passwords are in $(pwd)/secrets"
