// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

var (
	// userPattern and tokenPattern are those of Proxmox VE (pve-access-control,
	// Auth/Plugin.pm), but for a few characters that Proxmox VE takes in a name and
	// fails at later. It takes lists of users apart at commas and semicolons: a
	// permission for "a,root@pam" would be one for root@pam. And the ids of tasks
	// hold the user's name, which go-proxmox (v0.6.0 to v0.9.0, so that Cluster API's
	// provider as well) puts into paths as it is: % ? and # end or change these.
	userPattern  = regexp.MustCompile(`^[^\s:/,;%?#[:cntrl:]]+@[A-Za-z][A-Za-z0-9._-]+$`)
	tokenPattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]+$`)
)

// longestUserID is the length that Proxmox VE takes.
const longestUserID = 64

// CheckUserID refuses what Proxmox VE does not take as a user.
func CheckUserID(id string) error {
	if len(id) > longestUserID || !userPattern.MatchString(id) || strings.Contains(id, "!") {
		return fmt.Errorf("%q is not of the form \"name@realm\", such as \"capi@pve\", of at most %d characters, without blanks and without : / , ; %% ? # and an exclamation mark", id, longestUserID)
	}
	return nil
}

// CheckTokenName refuses what Proxmox VE does not take as a token's name.
func CheckTokenName(name string) error {
	if !tokenPattern.MatchString(name) {
		return fmt.Errorf("%q is not a token name: a letter, then one or more letters, digits, dots, underscores and dashes", name)
	}
	return nil
}

// TokenID are the parts of "name@realm!token".
type TokenID struct {
	// UserID is "name@realm", User and Realm its parts, Token the token's name.
	UserID, User, Realm, Token string
}

// ParseTokenID takes an API token's id apart. Its error never repeats a secret
// that was pasted with it.
func ParseTokenID(id string) (TokenID, error) {
	if strings.HasPrefix(id, "PVEAPIToken") || strings.Contains(id, "=") {
		return TokenID{}, errors.New("it holds more than the token's id, which ends before \"=\"; what follows is the secret, and belongs elsewhere")
	}
	user, token, ok := strings.Cut(id, "!")
	if !ok {
		return TokenID{}, fmt.Errorf("%q is not a token id such as \"root@pam!terraform\": it has no \"!\" before a token's name", id)
	}
	if err := CheckUserID(user); err != nil {
		return TokenID{}, fmt.Errorf("%q is not a token id such as \"root@pam!terraform\": %w", id, err)
	}
	if err := CheckTokenName(token); err != nil {
		return TokenID{}, fmt.Errorf("%q is not a token id such as \"root@pam!terraform\": %w", id, err)
	}
	at := strings.LastIndexByte(user, '@') // a name may have one of its own
	return TokenID{UserID: user, User: user[:at], Realm: user[at+1:], Token: token}, nil
}

// CheckTokenID refuses what is no API token's id.
func CheckTokenID(id string) error {
	_, err := ParseTokenID(id)
	return err
}
