"""The parts of the benchmark `cpu --gguf`: GGUF files, opened by Quire and by llama.cpp, and measured turn by turn."""
