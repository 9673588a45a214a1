"""A store in an object store (s3://): its requests, its registers, its copy here."""
