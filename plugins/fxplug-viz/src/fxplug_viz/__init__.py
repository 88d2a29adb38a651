"""Pictures of fxplug graphs: DOT text, and images where Graphviz is installed."""
