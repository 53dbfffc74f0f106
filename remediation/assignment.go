package remediation

// assignment finds the cheapest way to pair n rows with n columns (the
// Hungarian method, in its form with potentials).
type assignment struct {
	n          int
	cost       []int // n x n
	row, col   []int // potentials
	match, way []int // row of each column, counted from 1; the path's column before
	least      []int
	used       []bool
}

// reset makes room for n rows and columns of price 0.
func (a *assignment) reset(n int) {
	if cap(a.cost) < n*n {
		a.cost = make([]int, n*n)
		a.row, a.col = make([]int, n+1), make([]int, n+1)
		a.match, a.way, a.least, a.used = make([]int, n+1), make([]int, n+1), make([]int, n+1), make([]bool, n+1)
	}
	a.n = n
	a.cost = a.cost[:n*n]
	a.row, a.col, a.match, a.way, a.least, a.used = a.row[:n+1], a.col[:n+1], a.match[:n+1], a.way[:n+1], a.least[:n+1], a.used[:n+1]
	clear(a.cost)
	clear(a.row)
	clear(a.col)
	clear(a.match)
}

// set gives the price of a pair.
func (a *assignment) set(i, j, price int) { a.cost[i*a.n+j] = price }

// solve gives the least price of all pairings, at most never.
func (a *assignment) solve() int {
	for i := 1; i <= a.n; i++ {
		a.match[0] = i
		for j := range a.least {
			a.least[j], a.used[j] = never*2, false
		}
		j := 0
		for a.match[j] != 0 {
			j = a.extend(j)
		}
		for j != 0 {
			a.match[j] = a.match[a.way[j]]
			j = a.way[j]
		}
	}
	total := 0
	for j := 1; j <= a.n; j++ {
		total = min(total+a.cost[(a.match[j]-1)*a.n+j-1], never)
	}
	return total
}

// extend takes column from into the tree and gives the nearest column beyond.
func (a *assignment) extend(from int) int {
	a.used[from] = true
	i, delta, next := a.match[from], never*4, 0
	for j := 1; j <= a.n; j++ {
		if a.used[j] {
			continue
		}
		if reduced := a.cost[(i-1)*a.n+j-1] - a.row[i] - a.col[j]; reduced < a.least[j] {
			a.least[j], a.way[j] = reduced, from
		}
		if a.least[j] < delta {
			delta, next = a.least[j], j
		}
	}
	for j := 0; j <= a.n; j++ {
		if a.used[j] {
			a.row[a.match[j]] += delta
			a.col[j] -= delta
		} else {
			a.least[j] -= delta
		}
	}
	return next
}
