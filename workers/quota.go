package workers

import (
	"encoding/json"

	"drover/proxy/admission"
)

// raiseQuotas puts raised quotas in the place of lower ones. What this build does not
// understand is left to who reads the policies: it says so.
func raiseQuotas(policies, raised map[string][]byte) map[string][]byte {
	for name, text := range raised {
		policy, err := admission.ParsePolicy(policies[name])
		if err != nil {
			continue
		}
		by, err := admission.ParsePolicy(text)
		if err != nil {
			continue
		}
		if text, err = json.Marshal(policy.Raised(by)); err == nil {
			policies[name] = text
		}
	}
	return policies
}
