"""Text from models: delimiters that no reply can forge, and the separation of reasoning from answer. Pure."""
