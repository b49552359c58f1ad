"""Linear systems of small blocks on graphs: Krylov methods and multifrontal factorisations."""
