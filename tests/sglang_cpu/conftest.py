"""The stand-ins belong to sglang's environment and change what is imported where they are; nothing here is collected."""

collect_ignore_glob = ["shims/*"]
