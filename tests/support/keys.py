"""Keys of the environment, and the files in which they must not be."""

import secrets
from pathlib import Path

from pipegap.trainer.store.bucket import BucketClient

NAMES = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN"),
    *("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_API_KEY", "AZURE_STORAGE_ACCOUNT_KEY"),
    *("AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET", "WANDB_API_KEY", "HF_TOKEN"),
)


def new_keys() -> dict[str, str]:
    """A key by each name that a user's environment may have."""
    return {name: secrets.token_hex(20) for name in NAMES}


def leaks(keys: dict[str, str], *folders: Path, bucket: str = "") -> list[str]:
    """Return every key that a file or an object of the bucket holds, with its place."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 50, "a session and a store have more files than that"
    contents = {str(path): path.read_bytes() for path in files}
    if bucket.startswith("s3://"):
        client = BucketClient(bucket)
        objects = {meta.key: client.read(meta.key).content for meta in client.list("")}
        assert objects, "the files of the trials that have begun"
        contents |= objects
    return [
        f"{name} in {place}"
        for place, content in contents.items()
        for name, key in keys.items()
        if key.encode() in content
    ]
