"""The status managers of published SGLang wheels."""
