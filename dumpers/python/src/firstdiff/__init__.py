"""firstdiff from Python: record what a language model computes, and read it back.

firstdiff.trace          Writer and Reader of traces
firstdiff.llama_cpp      every node of llama.cpp's graph, through llama-cpp-python
firstdiff.transformers   every module of a Hugging Face model
"""

__version__ = "0.1.0"
