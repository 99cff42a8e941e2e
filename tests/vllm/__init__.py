"""Tests that need vllm, in a virtual environment of their own: `make test-vllm`."""
