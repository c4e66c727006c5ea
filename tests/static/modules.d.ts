// Libraries of the import map that have no types.
declare module "highlight";
declare module "temml";
