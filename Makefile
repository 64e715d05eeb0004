# `make` is what CI runs; `./check` does the same where there is no make.
.PHONY: all setup lint test torch vllm verifiers docs frameworks fix pins
all setup lint test torch vllm verifiers docs frameworks fix pins:
	./check $@
