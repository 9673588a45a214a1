"""A store in an object store (s3://, gs://, az://): its requests, its registers, its copy here."""
