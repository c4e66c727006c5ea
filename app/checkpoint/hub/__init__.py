"""Where models come from: the Hugging Face hub and its cache, and the package index for smollm2. Without torch."""
