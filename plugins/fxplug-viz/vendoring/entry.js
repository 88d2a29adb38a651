export { select } from 'd3-selection';
export { zoom, zoomIdentity } from 'd3-zoom';
export { scaleLinear, scaleSequential, scaleSequentialLog, scaleSequentialSqrt } from 'd3-scale';
export { interpolateViridis, interpolateYlGnBu, schemeTableau10 } from 'd3-scale-chromatic';
export { line, curveBasis } from 'd3-shape';
export { default as RBush } from 'rbush';
