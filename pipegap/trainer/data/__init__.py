"""Text → token shards with a manifest → batches that are a pure function of (seed, index)."""
